// Package wording formats the parts of sentences that depend on a number or a list.
package wording
