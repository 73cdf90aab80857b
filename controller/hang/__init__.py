"""A job in which nobody moves: is it a hang or a pause, whose is it, and can its nodes reach each other?"""
