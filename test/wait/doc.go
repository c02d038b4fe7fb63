// Package wait lets tests wait for what happens in its own time: they ask again until it is so, and fail if it takes
// too long. It replaces sleeps, which are too long on a fast machine and too short on a busy one.
package wait
