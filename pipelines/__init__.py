"""What can be launched: the Definitions object, the job and its command line."""
