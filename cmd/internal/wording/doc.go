// Package wording formats phrases that depend on a number or a list.
package wording
