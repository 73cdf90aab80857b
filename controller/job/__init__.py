"""One job from its submission to its end: generations, incidents, what is decided and done about each."""
