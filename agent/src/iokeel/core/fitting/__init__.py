"""What does a storage serve? Its capacity, cost curves, saturation and steadiness."""
