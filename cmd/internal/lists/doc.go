// Package lists has functions for lists that package slices lacks.
package lists
