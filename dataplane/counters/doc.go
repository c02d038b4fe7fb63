// Package counters keeps the kernel's counts of removed objects, so no sum decreases: a rewritten
// chain and a restored destination start at 0.
//
// Removed keys are eventually forgotten. Otherwise a host with changing endpoints would remember
// all its former endpoints. The count of a forgotten endpoint is added to its service, which exists
// as long as the service.
package counters
