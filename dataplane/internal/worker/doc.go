// Package worker runs deferred work, such as ending connections whose drain time is over. The work
// runs in a goroutine that is separate from the changes that cause it. The package keeps no state:
// the called function determines which work is due.
package worker
