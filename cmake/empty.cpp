// Keeps a folder's library buildable while it holds headers only.
