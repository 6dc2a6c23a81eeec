"""The scout: a small network that reads a page coarsely, with the question in mind, and says where the answer is."""
