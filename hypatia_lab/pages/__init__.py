"""What pages are made of: evidence, findings and phrases; these measure nothing unless asked."""
