#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
__global__ void a(float* x) { x[threadIdx.x] += 1; }
int main(int c, char** v) {
    if (!strcmp(v[1], "forkfirst")) {
        if (fork() == 0) {
        }
    }
    float* x;
    cudaMalloc(&x, 4096);
    for (int i = 0; i < 1000; i++) a<<<1, 32>>>(x);
    cudaDeviceSynchronize();
    usleep(700000);
    for (int i = 0; i < 10; i++) a<<<1, 32>>>(x);
    cudaDeviceSynchronize();
    if (!strcmp(v[1], "abort")) abort();
    if (!strcmp(v[1], "kill")) kill(getpid(), 9);
    if (!strcmp(v[1], "_exit")) _exit(3);
    if (!strcmp(v[1], "exec")) execl("/bin/sh", "sh", "-c", "echo became sh; exit 4", nullptr);
    if (!strcmp(v[1], "execcuda")) execl(v[0], v[0], "plain", nullptr);
    if (!strcmp(v[1], "fork")) {
        if (fork() == 0) exit(5);
        int s;
        wait(&s);
        printf("child %d\n", WEXITSTATUS(s));
    }
    if (!strcmp(v[1], "long")) {
        for (int i = 0; i < 30; i++) {
            a<<<1, 32>>>(x);
            usleep(50000);
        }
    }
    return 6;
}
