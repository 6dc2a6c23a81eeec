"""Golden files: what the code at 1a62bb3 chose, showed and answered, through every public door.

A later commit is compared with them by `test_golden.py`. A wanted difference is a reviewed change of one file:

    python -m tests.golden.make --only ask/half-273

pictures.py makes the images, doors.py asks the package, cases.py lists what is asked, record.py writes and compares.
Only doors.py knows names that are not public; it is the one file to change when such a name moves.

The files say the numbers of one machine (`files/made.json`) with float32 on one thread. There, every footprint must
be found again within 0.05 pixels. On another processor or another version of torch a tie may fall otherwise: at least
97 % of the footprints must then be found, and what follows from them is compared only where all of them were.
"""
