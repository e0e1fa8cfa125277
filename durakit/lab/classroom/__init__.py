"""The course as a whole: what it asks for, how far a learner is, and what a class did."""
