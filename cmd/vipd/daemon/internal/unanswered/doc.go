// Package unanswered finds endpoints that don't answer new connections. It reports each as a
// problem with the likely cause and the command that fixes it.
//
//	outlier -> Record (an endpoint, a client) -> Run reads the counters every 3 s -> Problems, StatsOf
//
// Counters are read only while an endpoint is suspect, because a reading may list all of
// conntrack's flows. The longer a reading lasts, the longer the pause before the next.
package unanswered
