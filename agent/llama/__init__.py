"""The only importer of llama_cpp.

Importing the package bounds the spinning of compute threads, which must happen
before llama_cpp loads libgomp.
"""

from agent.config import bound_spinning

bound_spinning()
