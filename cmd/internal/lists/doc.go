// Package lists provides list functions that are missing from package slices.
package lists
