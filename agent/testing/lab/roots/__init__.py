"""Other Debians' files, and a private view of them."""
