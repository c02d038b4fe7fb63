// Package lists provides functions for lists that package slices lacks.
package lists
