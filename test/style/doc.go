// Package style checks what a machine can of docs/style.md: the width of comments, and how they
// open. "make lint" runs it.
package style
