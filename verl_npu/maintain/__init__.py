"""What those who maintain the patches need and no job: locks as they are made, and what a newer upstream means."""
