"""How commands write to terminals, pipes and files."""
