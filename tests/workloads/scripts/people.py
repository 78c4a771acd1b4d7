"""Scripts as people write them, small: ``people.py KIND``. Each kind of public script that we try has one."""

import os
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = 400


class Numbers(Dataset):
    def __len__(self):
        return 64 * STEPS

    def __getitem__(self, index):
        return torch.full((64,), float(index % 7)), index % 4


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))


def train(net, batches, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(net.parameters(), 0.01)
    for inputs, labels in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()
        optimizer.step()


def random_batches(count=STEPS):
    for _ in range(count):
        yield torch.randn(16, 64), torch.randint(4, (16,))


def fused():
    """An optimizer whose step counters are tensors without dimensions, in lists."""
    net = network()
    train(net, random_batches(), torch.optim.AdamW(net.parameters(), fused=True))


def loader():
    """Epochs with workers and validation after each, as classifiers of images have them."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(3):
        train(net, DataLoader(Numbers(), 128, num_workers=2), optimizer)
        net.eval()
        with torch.no_grad():
            for inputs, _ in DataLoader(Numbers(), 1024):
                net(inputs)
        net.train()


def for_a_minute():
    until = time.monotonic() + 60
    while time.monotonic() < until:
        yield


def new_loss():
    """Epochs that make their loss anew: another module each time."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in for_a_minute():
        loss = nn.CrossEntropyLoss()
        for inputs, labels in random_batches(30):
            optimizer.zero_grad()
            loss(net(inputs), labels).backward()
            optimizer.step()


def folds():
    """Cross-validation: each fold has a model and an optimizer of its own."""
    for _ in for_a_minute():
        train(network(), random_batches(30))


def gan():
    """Two optimizers in turns, and epochs that make the loss of one anew."""
    made, judge = nn.Linear(8, 64), network()
    first, second = torch.optim.Adam(judge.parameters()), torch.optim.Adam(made.parameters())
    kept = nn.MSELoss()
    for _ in for_a_minute():
        loss = nn.MSELoss()
        for _ in range(30):
            first.zero_grad()
            loss(judge(made(torch.randn(16, 8)).detach()), torch.zeros(16, 4)).backward()
            first.step()
            second.zero_grad()
            kept(judge(made(torch.randn(16, 8))), torch.ones(16, 4)).backward()
            second.step()


def other_phases():
    """A GAN for a while, and then training with another optimizer: what was followed does not come back."""
    made, judge = nn.Linear(8, 64), network()
    first, second = torch.optim.Adam(judge.parameters()), torch.optim.RMSprop(made.parameters())
    third = torch.optim.SGD(judge.parameters(), 0.01)
    for place, _ in enumerate(for_a_minute()):
        for optimizer in (first, second) if place < 100 else (third, second):
            optimizer.zero_grad()
            judge(made(torch.randn(16, 8))).square().mean().backward()
            optimizer.step()


def phases():
    """One optimizer trains one part of its parameters for a while, and then another, in turns."""
    parts = [network(), network()]
    optimizer = torch.optim.SGD([weight for part in parts for weight in part.parameters()], 0.01)
    for _ in for_a_minute():
        for part in parts:
            train(part, random_batches(60), optimizer)


def turns():
    """Two models are trained in turns, so many steps each."""
    pairs = [(net := network(), torch.optim.SGD(net.parameters(), 0.01)) for _ in range(2)]
    for _ in for_a_minute():
        for net, optimizer in pairs:
            train(net, random_batches(60), optimizer)


def reinforcement():
    """Episodes of different lengths, with one step of the optimizer after each."""
    net = network()
    optimizer = torch.optim.Adam(net.parameters())
    for episode in range(STEPS):
        losses, state = [], torch.randn(64)
        for _ in range(5 + episode % 11):
            choice = torch.distributions.Categorical(logits=net(state))
            action = choice.sample()
            losses.append(-choice.log_prob(action))
            state = torch.tanh(state + 0.1 * action.item())
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()


def sampling():
    """Images that are made of noise in fifty steps each, without gradients."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 3, 3, padding=1)).eval()
    with torch.no_grad():
        for _ in range(STEPS // 10):
            image = torch.randn(2, 3, 16, 16)
            for _ in range(50):
                image = image - 0.1 * net(image)


def generate():
    """Tokens, one after the other, with what came before kept."""
    net, head = nn.GRU(32, 32, batch_first=True).eval(), nn.Linear(32, 100)
    table = nn.Embedding(100, 32)
    with torch.inference_mode():
        for _ in range(STEPS // 20):
            token, kept = torch.zeros(1, 1, dtype=torch.long), None
            for _ in range(60):
                out, kept = net(table(token), kept)
                token = head(out[:, -1:]).argmax(-1)


def threads():
    """A thread that prepares batches beside the one that trains."""
    ready, wanted = threading.Semaphore(0), threading.Semaphore(4)
    batches = []

    def prepare():
        while True:
            wanted.acquire()
            batches.append((torch.randn(16, 64) @ torch.eye(64), torch.randint(4, (16,))))
            ready.release()

    threading.Thread(target=prepare, daemon=True).start()

    def taken():
        for _ in range(STEPS):
            ready.acquire()
            yield batches.pop()
            wanted.release()

    train(network(), taken())


def in_a_thread():
    """All of the training is on another thread."""
    thread = threading.Thread(target=train, args=(network(), random_batches()))
    thread.start()
    thread.join()


def own_trainer():
    """A class with hooks that calls itself, as trainers of frameworks do."""

    class Trainer:
        def __init__(self, net, hooks):
            self.net, self.hooks = net, hooks
            self.optimizer = torch.optim.AdamW(net.parameters())
            self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step))

        def fit(self):
            for number, batch in enumerate(random_batches()):
                self.training_step(*batch)
                for hook in self.hooks:
                    hook(number)

        def training_step(self, inputs, labels):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(self.net(inputs).float(), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad(set_to_none=True)

    Trainer(network(), [lambda number: print(number) if number % 100 == 0 else None]).fit()


def again():
    """Sets a variable that is read when Python starts, and begins anew."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    train(network(), random_batches())


def rank(number, world):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "29517"
    torch.distributed.init_process_group("gloo", rank=number, world_size=world)
    train(nn.parallel.DistributedDataParallel(network()), random_batches())
    torch.distributed.destroy_process_group()


def long_rank(number, world):
    while True:
        train(network(), random_batches())


def spawned():
    mp.spawn(rank, args=(2,), nprocs=2)


def spawned_for_long():
    mp.spawn(long_rank, args=(2,), nprocs=2)


def prepared():
    """Other processes prepare something, and then this one trains."""
    mp.spawn(prepares, nprocs=2)
    context = mp.spawn(prepares, nprocs=1, join=False)
    while not context.join():
        pass
    train(network(), random_batches())


def prepares(number):
    torch.set_default_dtype(torch.float64)
    torch.randn(10)


def in_processes():
    children = [mp.get_context("spawn").Process(target=train, args=(network(), [])) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()


def prepared_in_processes():
    """Processes prepare data for a while, with modules, and then this one trains."""
    children = [mp.get_context("spawn").Process(target=prepares_with_modules) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    train(network(), random_batches())


def prepares_with_modules():
    torch.set_num_threads(1)
    net, until = network(), time.monotonic() + 13
    while time.monotonic() < until:
        net(torch.randn(16, 64))
        time.sleep(0.01)


def in_a_pool():
    with ProcessPoolExecutor(2, mp_context=mp.get_context("spawn")) as pool:
        list(pool.map(fold, range(4)))


def fold(number):
    train(network(), random_batches())


def producing():
    """A process that is no daemon puts batches into a queue without end, and this one trains with them."""
    queue = mp.get_context("spawn").Queue(8)
    producer = mp.get_context("spawn").Process(target=puts, args=(queue,))
    producer.start()
    with open(sys.argv[2], "w") as file:
        file.write(str(producer.pid))
    train(network(), (queue.get() for _ in range(STEPS)))
    producer.terminate()
    producer.join()


def puts(queue):
    while True:
        queue.put(next(random_batches()))


def retrying():
    """A process trains for long; whatever goes wrong with it, it is started again."""
    for _ in range(3):
        child = mp.get_context("spawn").Process(target=long_rank, args=(0, 1))
        child.start()
        try:
            child.join()
        except Exception as error:
            print("again", error)


def in_processes_for_long():
    """Processes train one model without end, which this one would test then."""
    net = network()
    net.share_memory()
    children = [mp.get_context("spawn").Process(target=long_rank, args=(number, 2)) for number in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    with torch.no_grad():
        for inputs, _ in random_batches():
            net(inputs)


def own_optimizer_beside_processes():
    """As people write it: the optimizer is made before the processes that use it start."""
    net = network()
    torch.optim.SGD(net.parameters(), lr=0.1)
    child = mp.get_context("spawn").Process(target=long_rank, args=(0, 1))
    child.start()
    child.join()


def own_optimizer_beside_spawned():
    torch.optim.SGD(network().parameters(), lr=0.1)
    mp.spawn(long_rank, args=(2,), nprocs=2)


def leaving():
    """A process that would go on."""
    child = mp.get_context("spawn").Process(target=stays, args=(sys.argv[2],))
    child.start()
    child.join()


def stays(path):
    """Train without end, once the number of the process is written down."""
    train(network(), random_batches(5))
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    long_rank(0, 1)


def in_processes_first():
    """A process trains for a while, and then this one does."""
    child = mp.get_context("spawn").Process(target=trains_for_a_while)
    child.start()
    child.join()
    train(network(), random_batches())


def trains_for_a_while():
    until = time.monotonic() + 15
    while time.monotonic() < until:
        train(network(), random_batches(20))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
