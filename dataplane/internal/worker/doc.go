// Package worker does what is due later, such as ending connections whose time is over, in a goroutine beside the changes
// from which it comes. It remembers nothing: the function that it calls finds out what is due.
package worker
