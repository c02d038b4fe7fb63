// Package wording writes counts, verbs and lists for sentences. The sentences themselves are written by its callers.
package wording
