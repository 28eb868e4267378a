"""What several wire formats share. It knows no vendor."""
