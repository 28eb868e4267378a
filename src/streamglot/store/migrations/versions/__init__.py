"""One file for each version, in the order that their ``down_revision`` says. A version that was released is never changed."""
