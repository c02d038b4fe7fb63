// Package unanswered finds endpoints that don't answer new connections. It reports each as a
// problem with the likely cause and the command that fixes it.
//
//	outlier -> Record (an endpoint, a client) -> Run reads the counters every 3 s -> Problems, StatsOf
//
// Counters are read only while an endpoint is suspect, because reading them may list all of
// conntrack's flows. The longer that takes, the longer vipd pauses before it reads them again.
package unanswered
