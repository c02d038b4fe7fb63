// Package counters keeps what the kernel counted at objects that are not there any more, so that no sum goes back: a chain
// that is written anew and a destination that is deleted begin at 0 again.
//
// What is gone for good is forgotten after a time, or a host whose endpoints come and go would remember all that it ever
// saw. Its count then is a part of its service's, which lasts as long as the service.
package counters
