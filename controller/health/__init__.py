"""The health of a job: one leading condition, in one sentence, with the one next action. Pure."""
