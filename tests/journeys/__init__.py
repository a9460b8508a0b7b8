"""Thin stories through real parts: each begins with what a person types and ends with what that person sees."""
