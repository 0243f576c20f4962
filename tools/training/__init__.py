"""What `tools/demo-training` is made of: a lesson, ranks that learn it, and who breaks a plane.

| module | idea |
|---|---|
| `lesson.py` | the network, the data set, and which images a rank has in which step (torch) |
| `rank.py` | one process of the job: trains when told, and notes every step (torch) |
| `classroom.py` | a lab with a rank in every host; trains, and breaks a plane at a given step |
| `figures.py` | what the steps say, and what must hold |
| `picture.py` | step times and losses, drawn |
| `command.py` | the command line |

The ranks import torch; who starts them does not.
"""
