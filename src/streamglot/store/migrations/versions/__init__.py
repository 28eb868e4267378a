"""One file per version, ordered by ``down_revision``. A released version never changes."""
