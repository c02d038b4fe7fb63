// Package wake tells loops to look again. It carries no values: a loop that is woken looks at what there is now. Sleep
// is for loops that look again by themselves.
package wake
