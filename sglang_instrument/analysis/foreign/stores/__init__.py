"""What foreign files hold, read without trusting them: pickles of torch, texts of engine calls."""
