"""What the tools do: a folder named as its tool."""
