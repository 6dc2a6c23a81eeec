"""What matters: the image's information and salience, the question's pointing, and their balance."""

from texturevlm.relevance.balance import Balance
from texturevlm.relevance.maps import Relevance

__all__ = ["Balance", "Relevance"]
