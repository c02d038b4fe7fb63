// Package outlier learns from the results of clients' connections:
//
//	userspace: each dial       -> ejections -> the model compiles without the endpoint
//	                           -> where the service has a check, that is done at once
//	kernel modes: no answer    -> where the service has a check, that is done at once
//	both          no answer    -> counted, and watched for the share of an endpoint (package unanswered)
//
// Only userspace mode ejects: it knows what came of each connect, and tries another endpoint before the client notices.
// When that is, and for how long, balancer/health.Ejections decides. A dataplane that dials is given to Listen before it
// begins; Ejected takes in what is compiled next, and answers with what is ejected of it; Run looks at the kernel's
// connections where a dataplane lists those without an answer (dataplane.WatchesUnanswered).
package outlier
