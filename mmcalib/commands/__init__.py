"""Bodies of the tools, in a file or a folder of the name of each tool."""
