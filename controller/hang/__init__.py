"""A job in which no rank moves: is it a hang or a pause, which rank causes it, and can its nodes reach each other?"""
