// Package unanswered watches which endpoints leave new connections without an answer, and makes that a problem with its likely cause
// and the command that fixes it.
//
//	outlier -> Heard (an endpoint, a client) -> Run reads the counters every 3 s -> Problems, Of
//
// Counters are read only while some endpoint is under suspicion, because to read them may list all of conntrack's flows. The pause
// between two readings grows with the time that they need.
package unanswered
