// Package wording has the forms of words and lists in sentences for users. What a sentence is about is not its business: who says it
// writes it.
package wording
