"""This project's playbooks and role."""
