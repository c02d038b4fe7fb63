// Package wording formats counts, verbs and lists for sentences. Callers write the sentences
// themselves.
package wording
