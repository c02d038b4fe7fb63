// Package style checks the parts of docs/style.md that a machine can check: the width of comments,
// and their openings. "make lint" runs it.
package style
