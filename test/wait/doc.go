// Package wait lets tests wait for events that have no fixed time: they poll until a condition
// holds, and fail after too long. It replaces sleeps, which are too long on a fast machine and too
// short on a busy one.
package wait
