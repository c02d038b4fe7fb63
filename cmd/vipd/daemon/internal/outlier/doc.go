// Package outlier learns from the results of clients' connections:
//
//	userspace: each dial       -> ejections -> the model compiles without the endpoint
//	                           -> if the service has a check, it runs at once
//	kernel modes: no answer    -> if the service has a check, it runs at once
//	both          no answer    -> counted, and compared with the endpoint's connections (package unanswered)
//
// Only userspace mode ejects endpoints, because it knows the result of each connect and can try
// another endpoint before the client notices. balancer/health.Ejections decides when an endpoint is
// ejected and for how long. Listen subscribes to a dataplane that dials endpoints, before that
// dataplane starts. Ejected receives new inputs, and returns the ejected endpoints among them. Run
// watches the kernel's connections if the dataplane can list unanswered connections
// (dataplane.WatchesUnanswered).
package outlier
