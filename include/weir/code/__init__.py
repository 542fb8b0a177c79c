"""The code of pipelines: archives of modules, code versions of tasks, and which of them an attempt runs."""
