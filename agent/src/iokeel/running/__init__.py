"""The agent at work: it observes VMs, carries out orders, and does slow things beside the ticks."""
