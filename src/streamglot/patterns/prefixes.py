"""Derives from an expression the expression of every text that can still grow into a match of it.

Theory. Let ``L`` be the matches of a pattern. A scanner that has seen the text ``t`` must hold the part of ``t`` that begins at
the leftmost place from which the rest of ``t`` is a proper prefix of a member of ``L``: what begins earlier can no longer
become a match, or a longer one. ``prefixes`` writes an expression for exactly these proper prefixes (the empty one among them):

    P(atom)       = empty
    P(assertion)  = empty                 it depends on the next character, so its place counts as undecided
    P(X Y)        = P(X) | X P(Y)
    P(X | Y)      = P(X) | P(Y)
    P(X{n,m})     = X{0,m-1} P(X)

An assertion at the very end therefore makes a whole match count as undecided until the next character or the end of the text.
The size of the result is that of the pattern times its depth of nesting.
"""

from __future__ import annotations

from .syntax import Alternation, Assertion, Atom, Node, Repeat, Sequence, write


def prefixes(node: Node) -> str:
    """The expression of all proper prefixes of the matches of this tree, with the empty prefix."""
    match node:
        case Atom() | Assertion():
            return ""
        case Sequence():
            return _of_sequence(node.items)
        case Alternation():
            return f"(?:{'|'.join(prefixes(option) for option in node.options)})"
        case Repeat():
            if node.most == 0:
                return ""
            inside = prefixes(node.item)
            last = "" if node.most is None else str(node.most - 1)
            return inside if last == "0" else f"(?:{write(node.item)}){{0,{last}}}{inside}"


def _of_sequence(items: tuple[Node, ...]) -> str:
    """From the last item to the first, so that the depth of Python's stack does not depend on the length."""
    rest = ""
    for position, item in enumerate(reversed(items)):
        own = prefixes(item)
        if position == 0:
            rest = own
        elif own:
            rest = f"(?:{own}|{write(item)}{rest})"
        else:
            rest = f"(?:{write(item)}{rest})?"
    return rest
