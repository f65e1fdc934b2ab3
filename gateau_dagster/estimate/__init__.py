"""What a plan would take: tokens, FLOPs, time."""
