"""Broken histories in wire form, mended as far as that can be done without inventing anything.

A repair is a list of small passes over plain copies, in a fixed order; each takes one kind of defect and notes what it
changed. What is left is judged by `check`: a history is repaired when nothing is found. Thinking, signatures, words of the
user and outcomes of tools are never made up; what was lost is said to be lost.
"""

from .mend import repair
from .plan import Change, Defect, Policy, Repaired

__all__ = ["Change", "Defect", "Policy", "Repaired", "repair"]
