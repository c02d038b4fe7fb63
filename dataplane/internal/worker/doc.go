// Package worker runs deferred work, such as ending connections whose time is over, in a goroutine
// separate from the changes that cause it. It keeps no state: the called function determines what
// is due.
package worker
